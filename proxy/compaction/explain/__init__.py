"""Explanations of the fate of a request's messages, for clients that ask and for pages."""
