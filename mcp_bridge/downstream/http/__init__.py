"""HTTP to remote servers: the client, its credentials, and when a request is sent again."""
