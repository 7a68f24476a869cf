"""Who is calling: tenants, their keys, admission, spending, session labels."""
