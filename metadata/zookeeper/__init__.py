"""The driver for clusters whose metadata are in ZooKeeper."""
