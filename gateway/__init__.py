"""The gateway: clients that speak Kafka's protocol produce to logs and consume from them."""
