"""The command eagle3-train: trains small targets and EAGLE-3 drafts."""
