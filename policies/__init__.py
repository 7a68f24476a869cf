"""Pure decisions: values in, values out. Here: settings, prices, numbers, model profiles, vocabulary, tables."""
