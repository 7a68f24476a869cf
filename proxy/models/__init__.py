"""What is known of models: windows, prices, tokenizers, and what media cost."""
