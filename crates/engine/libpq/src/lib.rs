//! Nothing of its own: the build scripts of the dependencies make the libraries.
