"""What health is judged by: circuit breakers, the run's status."""
