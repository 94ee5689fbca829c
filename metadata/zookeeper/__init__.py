"""The driver for clusters of many hosts, which keeps the metadata in ZooKeeper."""
