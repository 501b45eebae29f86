"""Model families: how a checkpoint on disk becomes something the engine can step."""
