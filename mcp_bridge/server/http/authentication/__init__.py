"""Who a request over HTTP is from: tokens of ours, access tokens of an authorization server, a proxy's word."""
