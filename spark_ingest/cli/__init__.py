"""The commands of `umqtt` for spools and tables, one file each; spools: what several of them read."""
