"""Programs that train the models that gen ships; not in the wheel."""
