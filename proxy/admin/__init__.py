"""The pages for operators: the API under /admin, health and metrics, and who may use them."""
