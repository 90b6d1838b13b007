package transport

// RemoteLine is for tests that play a login node.
var RemoteLine = remoteLine
