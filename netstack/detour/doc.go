// Package detour has packets of this process go as a Plan of package impair says: a Road is one
// direction of a bad path, with the clock, the memory and the goroutine that impair does without,
// and Frames has those of a port of a switch go over two of them.
//
//	road := detour.NewRoad(&plan, detour.Out, begun)
//	road.Send(&detour.Packet{Octets: octets, Arrive: func(p *detour.Packet) { ... }})
//	road.Close()
package detour
