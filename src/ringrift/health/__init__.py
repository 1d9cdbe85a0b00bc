"""What health is judged by: circuit breakers, calls that outlive foreign errors, the run's status."""
