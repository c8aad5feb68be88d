"""Views: topics folded by their keys into stores that follow them."""
