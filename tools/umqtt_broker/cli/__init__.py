"""The commands of `umqtt` for the broker, one file each; lan, authority: what they make."""
