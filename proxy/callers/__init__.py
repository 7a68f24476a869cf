"""Who is calling: tenants, their keys and what these use, the admin token, admission, spending, session labels."""
