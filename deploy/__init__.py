"""Files for deployment, shipped as data of this package: units, settings, users. `octavo deploy` installs them."""
