"""What a request asks for, in the terms of the providers' APIs: above HTTP, and below what is done about it."""
