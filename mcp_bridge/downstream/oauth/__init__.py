"""OAuth 2.1 for remote servers: logins, their tokens, and the requests to authorization servers."""
