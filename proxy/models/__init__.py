"""Facts about models: context windows, prices, tokenizers and the tokens of media."""
