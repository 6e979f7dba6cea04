#include "socket.h"
struct rs *rs_new_datagram(int domain) { (void)domain; errno = EOPNOTSUPP; return NULL; }
