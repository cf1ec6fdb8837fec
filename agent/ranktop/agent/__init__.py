"""The agent that lives in every rank of a training job."""
