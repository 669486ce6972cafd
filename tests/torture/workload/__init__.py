"""The work that Duly does while it is tortured: the handlers' app, the sink they call, and the clients of the API."""

#: Number of deploys of `shop_app`. The workers of `torture_app` have the tasks of all of them.
SHOP_DEPLOYS = 60
