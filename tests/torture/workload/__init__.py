"""The work that Duly does while it is tortured: the handlers' app, the sink they call, and the clients of the API."""
