// Package dcqcn is how RoCEv2 gives way where its packets are marked: DCQCN (Zhu et al., Congestion
// Control for Large-Scale RDMA Deployments, SIGCOMM 2015). Who receives packets that a switch has
// marked (ECN: congestion experienced) tells the sender of it by a congestion notification packet
// (CNP), at most one in a while: a Notifier. The sender lowers its rate, and raises it again as
// long as no further CNP comes: a Limiter.
//
// It is pure: events and the time in, a rate and when the next packet may go out. It has no timers:
// what has been due is done when somebody asks. A Limiter that has not had a CNP limits nothing and
// costs its user the look at one flag.
package dcqcn
