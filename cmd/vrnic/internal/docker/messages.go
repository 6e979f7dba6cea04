package docker

// Messages of libnetwork's remote drivers, as far as this one has a use for them.

// A networkRequest is about a network.
type networkRequest struct {
	NetworkID string
	// Options has what was given by --opt under genericOptions.
	Options map[string]any
}

// genericOptions is where libnetwork has the options of a driver's own.
const genericOptions = "com.docker.network.generic"

// An endpointRequest is about an endpoint: what a container has in a network.
type endpointRequest struct {
	NetworkID, EndpointID string
	Interface             *face
}

// A face is the interface of an endpoint. What Docker has given a value the answer leaves out.
type face struct {
	Address     string `json:",omitempty"` // with the length of the network's prefix
	AddressIPv6 string `json:",omitempty"`
	MacAddress  string `json:",omitempty"`
}

type (
	activateReply   struct{ Implements []string }
	capabilityReply struct{ Scope, ConnectivityScope string }
	allocateReply   struct{ Options map[string]string }
	endpointReply   struct{ Interface face }
	infoReply       struct{ Value map[string]string }
	// A joinReply names the interface that Docker moves into the container, and what its name begins
	// with there. DisableGatewayService keeps Docker from a bridge of its own beside.
	joinReply struct {
		InterfaceName         struct{ SrcName, DstPrefix string }
		DisableGatewayService bool
	}
	emptyReply struct{}
	errorReply struct{ Err string }
)
