"""Who is calling: tenants and their keys, issued ones and what they use, the admin token, admission, spending, session labels."""
