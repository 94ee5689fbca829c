"""The sink ``octavo``: writes rows into ledgers, and publishes them together."""
