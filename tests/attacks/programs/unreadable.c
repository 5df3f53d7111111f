/* A quiet one whose file nobody but root may read, which makes its /proc root's. */
#include "quiet.c"
