"""What a person sees: the dashboard and the commands."""
