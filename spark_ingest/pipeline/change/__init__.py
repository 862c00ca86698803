"""Changes of tables while no pipeline runs: ``rebuild`` them from bronze, ``delete_device`` from all of them."""
