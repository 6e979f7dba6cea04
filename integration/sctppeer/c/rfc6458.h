// What usrsctp.c and linux.c have in common: options and notifications are those of RFC 6458 in
// both. Whoever includes it has the type handle, the function option and the macros SEND_ERROR and
// CAUSE, for what they have of their own.

struct options options;
static const struct user *user;

static void set_options(handle s)
{
	static const uint16_t events[] = {
		SCTP_ASSOC_CHANGE, SCTP_PEER_ADDR_CHANGE, SCTP_REMOTE_ERROR, SCTP_SHUTDOWN_EVENT,
		SCTP_ADAPTATION_INDICATION,
		SCTP_SENDER_DRY_EVENT, SCTP_SEND_FAILED_EVENT,
	};
	int one = 1;

	option(s, IPPROTO_SCTP, SCTP_RECVRCVINFO, &one, sizeof(one));
	option(s, IPPROTO_SCTP, SCTP_NODELAY, &one, sizeof(one));
	for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
		struct sctp_event e = {.se_assoc_id = SCTP_FUTURE_ASSOC, .se_type = events[i], .se_on = 1};

		option(s, IPPROTO_SCTP, SCTP_EVENT, &e, sizeof(e));
	}
	if (options.out || options.in) {
		struct sctp_initmsg m = {.sinit_num_ostreams = options.out, .sinit_max_instreams = options.in};

		option(s, IPPROTO_SCTP, SCTP_INITMSG, &m, sizeof(m));
	}
	if (options.maxseg) {
		struct sctp_assoc_value v = {.assoc_value = options.maxseg};

		option(s, IPPROTO_SCTP, SCTP_MAXSEG, &v, sizeof(v));
	}
	if (options.rcvbuf)
		option(s, SOL_SOCKET, SO_RCVBUF, &(int){options.rcvbuf}, sizeof(int));
	if (options.has_adapt) {
		struct sctp_setadaptation a = {.ssb_adaptation_ind = options.adapt};

		option(s, IPPROTO_SCTP, SCTP_ADAPTATION_LAYER, &a, sizeof(a));
	}
	if (options.rto) {
		struct sctp_rtoinfo r = {.srto_initial = options.rto, .srto_min = options.rto, .srto_max = 60000};

		option(s, IPPROTO_SCTP, SCTP_RTOINFO, &r, sizeof(r));
	}
	if (options.pathmax) {
		struct sctp_paddrparams p = {.spp_pathmaxrxt = options.pathmax};

		option(s, IPPROTO_SCTP, SCTP_PEER_ADDR_PARAMS, &p, sizeof(p));
	}
	if (options.small)
		option(s, IPPROTO_SCTP, SCTP_DISABLE_FRAGMENTS, &one, sizeof(one));
}

static void notification(const void *data, size_t len)
{
	const union sctp_notification *n = data;

	switch (n->sn_header.sn_type) {
	case SCTP_ASSOC_CHANGE: {
		const struct sctp_assoc_change *c = &n->sn_assoc_change;

		switch (c->sac_state) {
		case SCTP_COMM_UP:
			say("up %u %u", c->sac_outbound_streams, c->sac_inbound_streams);
			return;
		case SCTP_RESTART:
			say("restart");
			return;
		case SCTP_SHUTDOWN_COMP:
			say("down");
			return;
		case SCTP_COMM_LOST:
		case SCTP_CANT_STR_ASSOC:
			printf("%s %u ", c->sac_state == SCTP_COMM_LOST ? "lost" : "failed", CAUSE(c->sac_error));
			say_hex(c->sac_info, len - offsetof(struct sctp_assoc_change, sac_info));
			return;
		}
		return;
	}
	case SCTP_PEER_ADDR_CHANGE:
		say("path %u", n->sn_paddr_change.spc_state);
		return;
	case SCTP_REMOTE_ERROR:
		printf("reported %u ", CAUSE(n->sn_remote_error.sre_error));
		say_hex(n->sn_remote_error.sre_data, len - offsetof(struct sctp_remote_error, sre_data));
		return;
	case SCTP_SHUTDOWN_EVENT:
		say("closing");
		return;
	case SCTP_ADAPTATION_INDICATION:
		say("adapt %u", n->sn_adaptation_event.sai_adaptation_ind);
		return;
	case SCTP_SENDER_DRY_EVENT:
		say("dry");
		return;
	case SCTP_SEND_FAILED_EVENT:
		say("unsent %u", SEND_ERROR(n->sn_send_failed_event));
		return;
	}
}
