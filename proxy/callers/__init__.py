"""Who is calling: tenants and their keys, the admin token, admission, spending, session labels."""
