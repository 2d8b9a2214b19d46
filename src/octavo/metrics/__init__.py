"""What servers tell of themselves: the catalogue of metrics, and the page that shows them."""
