"""The engine on NATS JetStream: one store for many machines."""
