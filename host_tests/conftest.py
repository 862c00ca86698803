"""What holds for every test folder."""

from hypothesis import HealthCheck, settings

# The machines that run these tests are shared: how fast inputs are generated says nothing about the code. A failing
# example is printed with what it takes to run it again.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("shared")
