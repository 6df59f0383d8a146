"""One bridge as a whole: its engine, its servers, its sandboxes, and the channel to each of them."""
