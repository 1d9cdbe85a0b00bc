"""What keeps data: copies enough, nothing deleted that is needed, damage found in time."""
