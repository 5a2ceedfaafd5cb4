"""Who owns a process: its pod, else its container, else the process itself, also after it has gone."""
