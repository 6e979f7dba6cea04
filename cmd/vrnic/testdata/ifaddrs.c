/* Prints what getifaddrs(3) lists, an internet address in a line: name, flags, address/mask, broadcast address or "-". */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>

static const char *text(const struct sockaddr *sa, char *buf)
{
	if (!sa)
		return "-";
	if (sa->sa_family == AF_INET)
		return inet_ntop(AF_INET, &((const struct sockaddr_in *)sa)->sin_addr, buf, INET6_ADDRSTRLEN);
	return inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)sa)->sin6_addr, buf, INET6_ADDRSTRLEN);
}

int main(void)
{
	char addr[INET6_ADDRSTRLEN], mask[INET6_ADDRSTRLEN], broadcast[INET6_ADDRSTRLEN];

	for (int round = 0; round < 3; round++) {
		struct ifaddrs *list, *i;

		if (getifaddrs(&list)) {
			perror("getifaddrs");
			return 1;
		}
		for (i = list; i; i = i->ifa_next) {
			int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;

			if (round || (family != AF_INET && family != AF_INET6))
				continue;
			printf("%s %#x %s/%s %s\n", i->ifa_name, i->ifa_flags, text(i->ifa_addr, addr), text(i->ifa_netmask, mask),
			       i->ifa_flags & IFF_BROADCAST ? text(i->ifa_broadaddr, broadcast) : "-");
		}
		freeifaddrs(list);
	}
	freeifaddrs(NULL);
	return 0;
}
