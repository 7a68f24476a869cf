"""The pages and the API for operators under /admin, health, metrics and access control."""
