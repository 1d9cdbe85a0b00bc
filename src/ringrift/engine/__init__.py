"""Where state lives: four ports and their adapters."""
