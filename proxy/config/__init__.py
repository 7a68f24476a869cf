"""The config file: parsing, validation, problem reports and reloads."""
