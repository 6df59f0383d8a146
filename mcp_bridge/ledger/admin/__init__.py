"""What a person does about the log: another key, an accepted clock, an accepted loss."""
