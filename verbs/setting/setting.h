/*
 * What a program is told by its environment, or in a container by a file.
 */
#ifndef VRNIC_SETTING_H
#define VRNIC_SETTING_H

/*
 * Where `vrnic cdi` has settings mounted: each is a line NAME=VALUE. Programs that begin later in a
 * container, by podman exec and the like, have not the environment of its first one.
 */
#define VRNIC_SETTINGS "/run/vrnic/settings"

/*
 * The value of the environment's variable, else the one of VRNIC_SETTINGS, for free(3); NULL if
 * neither has one, and for a program that has more privilege than who started it.
 */
char *vrnic_setting(const char *name) __attribute__((visibility("hidden")));

#endif
