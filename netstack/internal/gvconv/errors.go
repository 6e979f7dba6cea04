package gvconv

import (
	"errors"
	"reflect"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// errnos says which error of the operating system stands for each of gVisor's. The keys are zero
// values of the types, which carry nothing.
var errnos = map[reflect.Type]syscall.Errno{
	typeOf[*tcpip.ErrAborted]():                   syscall.ECONNABORTED,
	typeOf[*tcpip.ErrAddressFamilyNotSupported](): syscall.EAFNOSUPPORT,
	typeOf[*tcpip.ErrAlreadyBound]():              syscall.EINVAL,
	typeOf[*tcpip.ErrAlreadyConnected]():          syscall.EISCONN,
	typeOf[*tcpip.ErrAlreadyConnecting]():         syscall.EALREADY,
	typeOf[*tcpip.ErrBadAddress]():                syscall.EINVAL,
	typeOf[*tcpip.ErrBadBuffer]():                 syscall.EFAULT,
	typeOf[*tcpip.ErrBadLocalAddress]():           syscall.EADDRNOTAVAIL,
	typeOf[*tcpip.ErrBroadcastDisabled]():         syscall.EACCES,
	typeOf[*tcpip.ErrClosedForReceive]():          syscall.ENOTCONN,
	typeOf[*tcpip.ErrClosedForSend]():             syscall.EPIPE,
	typeOf[*tcpip.ErrConnectionAborted]():         syscall.ECONNABORTED,
	typeOf[*tcpip.ErrConnectionRefused]():         syscall.ECONNREFUSED,
	typeOf[*tcpip.ErrConnectionReset]():           syscall.ECONNRESET,
	typeOf[*tcpip.ErrConnectStarted]():            syscall.EINPROGRESS,
	typeOf[*tcpip.ErrDestinationRequired]():       syscall.EDESTADDRREQ,
	typeOf[*tcpip.ErrDuplicateAddress]():          syscall.EEXIST,
	typeOf[*tcpip.ErrDuplicateNICID]():            syscall.EEXIST,
	typeOf[*tcpip.ErrHostDown]():                  syscall.EHOSTDOWN,
	typeOf[*tcpip.ErrHostUnreachable]():           syscall.EHOSTUNREACH,
	typeOf[*tcpip.ErrInvalidEndpointState]():      syscall.EINVAL,
	typeOf[*tcpip.ErrInvalidOptionValue]():        syscall.EINVAL,
	typeOf[*tcpip.ErrMalformedHeader]():           syscall.EINVAL,
	typeOf[*tcpip.ErrMessageTooLong]():            syscall.EMSGSIZE,
	typeOf[*tcpip.ErrNetworkUnreachable]():        syscall.ENETUNREACH,
	typeOf[*tcpip.ErrNoBufferSpace]():             syscall.ENOBUFS,
	typeOf[*tcpip.ErrNoNet]():                     syscall.ENETDOWN,
	typeOf[*tcpip.ErrNoPortAvailable]():           syscall.EADDRNOTAVAIL,
	typeOf[*tcpip.ErrNoSuchFile]():                syscall.ENOENT,
	typeOf[*tcpip.ErrNotConnected]():              syscall.ENOTCONN,
	typeOf[*tcpip.ErrNotPermitted]():              syscall.EPERM,
	typeOf[*tcpip.ErrNotSupported]():              syscall.EOPNOTSUPP,
	typeOf[*tcpip.ErrPortInUse]():                 syscall.EADDRINUSE,
	typeOf[*tcpip.ErrTimeout]():                   syscall.ETIMEDOUT,
	typeOf[*tcpip.ErrUnknownDevice]():             syscall.ENODEV,
	typeOf[*tcpip.ErrUnknownNICID]():              syscall.ENODEV,
	typeOf[*tcpip.ErrUnknownProtocol]():           syscall.EPROTONOSUPPORT,
	typeOf[*tcpip.ErrUnknownProtocolOption]():     syscall.ENOPROTOOPT,
	typeOf[*tcpip.ErrWouldBlock]():                syscall.EAGAIN,
}

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }

// Error turns an error of gVisor's into one for which errors.Is finds the syscall.Errno. nil stays
// nil.
func Error(err tcpip.Error) error {
	if err == nil {
		return nil
	}
	if no, ok := errnos[reflect.TypeOf(err)]; ok {
		return no
	}
	return errors.New(err.String())
}
