"""Programs made from what scripts did."""
